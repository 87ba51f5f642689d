"""What a source holds: model hub, object store, registry and web server, each asked for a `Listing` of its files.

`command` asks them. They know addresses, credentials and digests, and nothing of the folder that the files go to.
"""
