"""The style of the HTML report; colours in light and dark."""

STYLE = """
:root{color-scheme:light dark;--page:#fbfbfa;--card:#fff;--ink:#1c1f23;--soft:#5d646d;--rule:#dfe2e6;
--throughput:#1d5fd1;--ema:#c2410c;--ema-all:#0f7b5f;--static:#8a5fb0;--oracle:#9aa1aa;--bad:#b42318;--good:#17703f}
@media(prefers-color-scheme:dark){:root{--page:#131518;--card:#1b1e22;--ink:#e7e9ec;--soft:#a2a9b2;--rule:#33383e;
--throughput:#79a9ff;--ema:#f2925a;--ema-all:#56c7a3;--static:#c3a1e6;--oracle:#727983;--bad:#ff8d80;--good:#6fd096}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 4px}
h2{font-size:1.15rem;margin:36px 0 6px}
h3{font-size:1rem;margin:0 0 2px}
p{margin:4px 0 10px;max-width:70ch}
.soft{color:var(--soft);font-size:.9rem}
.cards{display:grid;gap:16px;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr))}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px 14px;min-width:0}
.wide{max-width:620px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:4px 12px 4px 0;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
th{font-weight:600;color:var(--soft)}
.met{color:var(--good)}
.missed{color:var(--bad);font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.88rem;margin:6px 0 8px;padding:0;list-style:none}
.legend i{display:inline-block;width:14px;height:4px;border-radius:2px;margin-right:6px;vertical-align:middle}
svg{display:block;width:100%;height:auto}
figure{margin:8px 0 0}
figcaption{font-size:.85rem;color:var(--soft)}
.tick{font-size:10.5px;fill:var(--soft)}
.label{font-size:11px;fill:var(--ink)}
.band{fill:var(--rule);opacity:.3}
.grid{stroke:var(--rule);stroke-width:.7;fill:none}
.line{fill:none;stroke-width:1.5;stroke-linejoin:round}
.whisker{stroke-width:1.6;fill:none;opacity:.6}
.line.oracle{stroke:var(--oracle);stroke-width:4;opacity:.55}
.line.throughput,.throughput .whisker{stroke:var(--throughput)}
.line.ema,.ema .whisker{stroke:var(--ema)}
.line.ema-all,.ema-all .whisker{stroke:var(--ema-all)}
.line.static,.static .whisker{stroke:var(--static)}
.oracle .whisker{stroke:var(--oracle)}.oracle .dot{fill:var(--oracle)}
.throughput .dot{fill:var(--throughput)}.ema .dot{fill:var(--ema)}
.ema-all .dot{fill:var(--ema-all)}.static .dot{fill:var(--static)}
code{font-size:.85rem;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;font-size:.88rem;margin:0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
"""
