"""Reliable files: atomic writing, digests, scratch names, trust."""
