"""Verifies only the likeliest drafts of a batch, so requests verify different numbers of drafts.

Its hooks are installed only where SGLANG_ADAPTIVE_VERIFY_BUDGET is set: by the launcher where the configuration says
``"verify_budget": true``, or by hand, for tests.

A round, with `width` = steps + 1 tokens for each of `requests`:

1. The draft runs all steps for all requests. `chances` keeps the chance that it gave each token.
2. If the policy has chosen a budget for the round, `packing` chooses how many drafts of each request to verify,
   `requests * budget` in all. The host knows that sum, so nothing waits for the device.
3. `rounds` gives the target a packed copy of SGLang's verify input: token ids, positions, KV slots, and SGLang's own
   `RaggedVerifyLayout`, with which DSPARK passes unequal query lengths to attention backends. On fa3 the pass runs in
   the graph of `budget` steps (`target_graphs`), and the draft's graphs return chances too (`chances`).
4. After the pass `rounds` spreads logits and hidden states back before anything reads them.
5. `looks` sends a few numbers to the host with the round's result, from which the policy learns budgets.

SGLang's own verify input stays a rectangle [requests, width]. docs/architecture.md says why outputs are the same.
Rejection sampling is refused because it does not follow the links between drafts.
"""
