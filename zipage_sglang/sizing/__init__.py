"""What fits and how fast, before a server is started: `python -m zipage_sglang plan`."""
