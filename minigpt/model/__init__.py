"""The network, and what it runs on."""
