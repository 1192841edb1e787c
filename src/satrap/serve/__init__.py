"""Serving: answers requests over HTTP with the scores of a trained model, each of exactly one training step.

`ServedModel` scores, `Scorer` is the thread that owns it and joins the requests that wait, `Application` has
the routes, and `Server` runs them. It needs `pip install 'satrap[serve]'`.
"""
