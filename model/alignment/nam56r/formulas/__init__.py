"""NAM56R once more, from the formulas, in fp64: one document at a time, recurrences a token at a time.

The constants are written here again; of a size widths and counts are taken. Weights are a dict by a checkpoint's keys;
functions of a part take the beginning ``p`` of its keys. Of a document of S tokens hidden states are [S, h].
"""
