"""RocksDB's options for a local copy, sized by its memory limit.

The block cache, with indexes and filters, uses three eighths of the memory. The write buffers of all column families use one eighth, and
twice as much during a flush. The rest is for write batches. Blocks are compressed with LZ4, which saves disk and page cache at little
cost.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import rocksdict

_CACHE_SHARE, _BUFFERS_SHARE, _BUFFER_SHARE = 3 / 8, 1 / 8, 1 / 16
_LEAST_BUFFER_BYTES: Final = 1 << 20
_LEVEL_BYTES: Final = 32 << 20
_FILE_BYTES: Final = 8 << 20
"""Small levels of small files make compactions so short that a micro-batch can wait for their end."""
_FILTER_BITS: Final = 10
_OPEN_FILES: Final = 256
_READING_CACHE_BYTES: Final = 64 << 20


@lru_cache(maxsize=8)
def options(memory_bytes: int) -> rocksdict.Options:
    """Return the options of a database that uses about ``memory_bytes`` of memory."""
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(int(memory_bytes * _CACHE_SHARE)))
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_bloom_filter(_FILTER_BITS, False)
    made = rocksdict.Options(raw_mode=True)
    made.create_if_missing(True)
    made.create_missing_column_families(True)
    made.set_block_based_table_factory(table)
    made.set_max_bytes_for_level_base(_LEVEL_BYTES)
    made.set_target_file_size_base(_FILE_BYTES)
    made.set_compression_type(rocksdict.DBCompressionType.lz4())
    made.set_atomic_flush(True)
    made.set_db_write_buffer_size(max(int(memory_bytes * _BUFFERS_SHARE), _LEAST_BUFFER_BYTES))
    made.set_write_buffer_size(max(int(memory_bytes * _BUFFER_SHARE), _LEAST_BUFFER_BYTES))
    made.set_max_background_jobs(2)
    made.set_max_open_files(_OPEN_FILES)
    made.set_keep_log_file_num(1)
    made.set_stats_dump_period_sec(0)
    made.set_stats_persist_period_sec(0)
    return made


@lru_cache(maxsize=1)
def reading_options() -> rocksdict.Options:
    """Return the options of databases that are only read. They share a block cache."""
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(_READING_CACHE_BYTES))
    made = rocksdict.Options(raw_mode=True)
    made.set_block_based_table_factory(table)
    made.set_max_open_files(-1)  # open all files at once, because the writer may delete them
    made.set_keep_log_file_num(1)
    return made


@lru_cache(maxsize=1)
def unlogged() -> rocksdict.WriteOptions:
    made = rocksdict.WriteOptions()
    made.disable_wal = True  # type: ignore[method-assign,assignment]  # a property, although its stub declares a method
    return made
