"""Generate the pages from stored records."""
