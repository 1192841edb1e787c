"""Commands that use a trained model."""
