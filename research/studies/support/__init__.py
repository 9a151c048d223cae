"""What several studies share: trials, conditions, ledgers, tables."""
