"""Load tests: sends a server requests at a given rate, and reports latency and correctness of the answers.

Each request is sent when it is due, whether or not earlier ones are answered, and its latency counts from
then. So a stall of the server shows in the latencies; clients that wait for each answer would miss it.
"""
