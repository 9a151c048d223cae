"""One reader for each family of formats: from a file to a lazy polars frame.

A reader is a module with

    SUFFIXES                        suffixes of its files
    scan(path, options)             -> polars.LazyFrame over the unpacked file, read in pieces
    diagnose(path, options)         raises a clear error after polars has failed (optional)
    find_usual(frame)               -> (input, target) by the format's convention (optional)
"""
