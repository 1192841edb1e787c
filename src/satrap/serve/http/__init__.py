"""The HTTP server: routes, requests, errors."""
