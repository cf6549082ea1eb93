"""What an interpreter or a folder of packages has, of which nothing runs."""
