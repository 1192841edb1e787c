"""What messages look like: headers, control texts, batches. Bytes in, values out, nothing is sent here."""
