"""The process and its machine: threads, memory, compiled code, environment, user code, messages."""
