from millstream.core.dsl.grouped import KGroupedStream as KGroupedStream
from millstream.core.dsl.kstream import KStream as KStream
from millstream.core.dsl.ktable import KTable as KTable
