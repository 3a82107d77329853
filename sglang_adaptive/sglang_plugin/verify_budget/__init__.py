"""Verifies the drafts of a batch that are most likely right, so that requests verify unequal numbers of them.

Its hooks are installed only where SGLANG_ADAPTIVE_VERIFY_BUDGET is set: by the launcher where the configuration says
``"verify_budget": true``, or by hand, for tests.

A round, with `width` = steps + 1 tokens of each of `requests`:

1. The draft runs all steps for all requests. `chances` keeps the chance that it gave each token.
2. Where the policy has chosen a budget for the round, `ranking` chooses how many drafts of each request to verify,
   `requests * budget` in all. The host knows that sum, so that nothing waits for the device.
3. `rounds` gives the target a packed copy of SGLang's verify input: token ids, positions and KV
   slots, and SGLang's own `RaggedVerifyLayout`, with which DSPARK hands attention backends unequal query lengths.
   On fa3 the pass runs in the graph of `budget` steps (`target_graphs`), and the graphs of the draft return chances
   too (`chances`).
4. After the pass `rounds` spreads logits and hidden states back before anything reads them.
5. `looks` sends a few numbers to the host with the round's result: what the policy learns budgets from.

SGLang's own verify input stays a rectangle [requests, width]. docs/architecture.md says why outputs are the same.
Rejection sampling walks no links from draft to draft, and is refused.
"""
