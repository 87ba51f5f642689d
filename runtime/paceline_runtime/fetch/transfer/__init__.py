"""A `Listing` into a folder: downloads that resume, verified, unpacked, given their names, remembered in a manifest.

`command` runs it. It knows bytes, files and digests, and nothing of the kinds of source.
"""
