"""One reader for each family of formats: a file in, a lazy polars frame out.

A reader is a module with

    SUFFIXES                        the names of its files end so
    scan(path, options)             -> polars.LazyFrame over the unpacked file, read in pieces
    diagnose(path, options)         raises the clear error where polars has failed (optional)
    usual(frame)                    -> (input, target) by the format's convention (optional)
"""
