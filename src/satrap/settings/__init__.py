"""Settings as dataclasses: how rows are stored and sent, how a network is spread, how often a run is saved.

Recipes derive their keys from them, and the code that acts takes them as arguments.
"""
