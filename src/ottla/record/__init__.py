"""Record batches: headers, codecs, control records.

Zone: pure.
"""
