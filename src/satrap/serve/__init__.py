"""Serving: HTTP answers with the scores of a trained model, each answer from exactly one training step.

`ServedModel` computes scores. `Scorer` is the thread that owns the model and batches waiting requests.
`Application` has the routes, and `Server` runs them. Install with `pip install 'satrap[serve]'`.
"""
