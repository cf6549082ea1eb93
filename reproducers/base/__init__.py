"""What every room uses: errors, verdicts, exit codes, words, the command line's ends. Imports no other room."""
