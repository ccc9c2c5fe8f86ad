"""What is owed: prices, meters, the ledger, and what was used."""
