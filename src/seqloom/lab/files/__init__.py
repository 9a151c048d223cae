"""Files that survive: atomic writing, digests, scratch names, trust."""
