// The card on top: what the server does, or why nothing can be said of it.

let shownKind = "";

function showState({ kind, mark, headline, sentence }) {
  byId("state").dataset.state = kind;
  write(byId("mark"), mark);
  write(byId("headline"), headline);
  write(byId("sentence"), sentence);
  document.title = `${headline} - adaptive speculation`;
  byId("key-form").hidden = kind !== "locked";
  byId("content").classList.toggle("stale", ["gone", "failed", "waiting", "locked"].includes(kind));
  if (kind !== shownKind) {
    // Said once a change of state; a screen reader is not to read every new depth.
    shownKind = kind;
    write(byId("announcement"), kind === "serving" ? "Serving." : `${headline}. ${sentence}`);
  }
}

function showLocked(refused) {
  const opening = shownKind !== "locked";
  const sentence = refused ? "The server does not take this key." : "This server shows its state to those who have its key.";
  showState({ kind: "locked", mark: "\u25a1", headline: "Key needed", sentence });
  if (opening || refused) byId("key").focus();
}

function showGone(since) {
  const sentence = `The server has not answered since ${clockTime(since)}. What is shown is from before; the page goes on asking.`;
  showState({ kind: "gone", mark: "\u2715", headline: "Gone", sentence });
}

function showWaiting(since) {
  const sentence = `The server is up, but its scheduler has been busy since ${clockTime(since)}, as in a long prefill.`;
  showState({ kind: "waiting", mark: "\u25d0", headline: "Waiting", sentence });
}

function showFailed(message) {
  showState({ kind: "failed", mark: "\u2715", headline: "No data", sentence: message });
}
