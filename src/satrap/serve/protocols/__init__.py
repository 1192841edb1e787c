"""What requests and answers look like: JSON, Arrow, Open Inference Protocol."""
