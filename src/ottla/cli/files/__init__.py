"""Files of records, as `ottla export` writes them and `ottla import` reads them: JSON lines, CSV and Parquet.

Zone: real.
"""
