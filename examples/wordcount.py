"""Count the words of a topic's lines into another topic.

The topics must exist; Kafka's own tools make them, or a broker with auto.create.topics.enable:

    kafka-topics.sh --bootstrap-server localhost:9092 --create --topic lines --partitions 4
    kafka-topics.sh --bootstrap-server localhost:9092 --create --topic counts --partitions 4
    python examples/wordcount.py localhost:9092
"""

import sys

import millstream as ms

builder = ms.StreamsBuilder()
lines = builder.stream("lines", key=ms.serdes.string, value=ms.serdes.string)
counts = (
    lines.flat_map_values(str.split)
    .group_by(lambda _, word: word)
    .count(store="counts")
)  # fmt: skip
counts.to_stream().to("counts", value=ms.serdes.int64)
topology = builder.build()

if __name__ == "__main__":
    servers = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
    ms.Application("word-count", topology, bootstrap_servers=servers).run()
