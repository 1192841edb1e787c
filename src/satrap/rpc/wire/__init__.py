"""The format of messages: headers, control texts, batches. Encodes and decodes only; sends nothing."""
