"""Write, verify and import receipts, and make the manifest from them."""
