import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * Prints the topologies of names.py as Kafka Streams describes them: {@code java -cp 'JARS/*' DescribeNames.java > names.txt},
 * with the jars of Kafka Streams 4.3.0.
 */
public final class DescribeNames {
    private static final Duration MS = Duration.ofMillis(10);
    private static final JoinWindows NEAR = JoinWindows.ofTimeDifferenceAndGrace(MS, MS);
    private static final TimeWindows TUMBLING = TimeWindows.ofSizeWithNoGrace(MS);
    private static final SlidingWindows SLIDING = SlidingWindows.ofTimeDifferenceWithNoGrace(MS);
    private static final SessionWindows SESSIONS = SessionWindows.ofInactivityGapWithNoGrace(MS);

    private static final StoreBuilder<KeyValueStore<String, String>> KEPT = Stores.keyValueStoreBuilder(
        Stores.inMemoryKeyValueStore("kept"), Serdes.String(), Serdes.String());

    /** A processor that forwards nothing. */
    private static final class Absorbing implements Processor<String, String, Void, Void> {
        @Override
        public void process(final Record<String, String> record) { }
    }

    private static void show(final String name, final Consumer<StreamsBuilder> define) {
        final StreamsBuilder builder = new StreamsBuilder();
        define.accept(builder);
        System.out.println("# " + name);
        System.out.print(builder.build().describe());
        System.out.println();
    }

    private static KStream<String, String> in(final StreamsBuilder b) {
        return b.stream("in");
    }

    private static KGroupedStream<String, String> grouped(final StreamsBuilder b) {
        return in(b).groupByKey();
    }

    private static String left(final String one, final String other) {
        return one;
    }

    private static String third(final String key, final String value, final String aggregate) {
        return aggregate;
    }

    public static void main(final String[] args) {
        show("stateless", b -> in(b).filter((k, v) -> true).filterNot((k, v) -> true).mapValues(v -> v)
            .flatMapValues(v -> List.of(v)).map((k, v) -> KeyValue.pair(k, v))
            .flatMap((k, v) -> List.of(KeyValue.pair(k, v))).selectKey((k, v) -> v).peek((k, v) -> { }).to("out"));
        show("named_stateless", b -> b.stream("in", Consumed.<String, String>as("read"))
            .filter((k, v) -> true, Named.as("some")).mapValues(v -> v).to("out"));
        show("foreach_and_print", b -> {
            in(b).foreach((k, v) -> { });
            b.<String, String>stream("other").print(org.apache.kafka.streams.kstream.Printed.toSysOut());
        });
        show("merge", b -> in(b).merge(b.stream("other")).to("out"));
        show("split", b -> in(b).split().branch((k, v) -> true).branch((k, v) -> true, Branched.as("named"))
            .defaultBranch().values().forEach(s -> s.to("out-" + s.hashCode() % 1)));
        show("named_split", b -> in(b).split(Named.as("to-")).branch((k, v) -> true)
            .branch((k, v) -> true, Branched.as("named")).defaultBranch());
        show("process", b -> in(b).process(Nothing::new).processValues(NothingFixed::new).to("out"));
        show("repartition", b -> in(b).repartition().to("out"));
        show("named_repartition", b -> in(b).repartition(Repartitioned.as("mine")).to("out"));
        show("to_table", b -> in(b).toTable().toStream().to("out"));
        show("to_table_rekeyed", b -> in(b).selectKey((k, v) -> v).toTable().toStream().to("out"));
        show("to_table_store", b -> in(b).selectKey((k, v) -> v).toTable(Materialized.as("rows")).toStream().to("out"));
        show("named_to_table", b -> in(b).toTable(Named.as("rows")).toStream().to("out"));
        show("table", b -> b.table("in").toStream().to("out"));
        show("table_store", b -> b.table("in", Materialized.as("rows")).toStream().to("out"));
        show("named_table", b -> b.table("in", Consumed.as("read"), Materialized.as("rows")).toStream().to("out"));
        show("global_table", b -> {
            final GlobalKTable<String, String> table = b.globalTable("table");
            in(b).join(table, (k, v) -> k, DescribeNames::left).leftJoin(table, (k, v) -> k, DescribeNames::left).to("out");
        });
        show("count", b -> grouped(b).count().toStream().to("out"));
        show("count_store", b -> grouped(b).count(Materialized.as("counts")).toStream().to("out"));
        show("named_count", b -> grouped(b).count(Named.as("mine")).toStream().to("out"));
        show("count_rekeyed", b -> in(b).groupBy((k, v) -> v).count().toStream().to("out"));
        show("count_rekeyed_store", b -> in(b).groupBy((k, v) -> v).count(Materialized.as("counts")).toStream().to("out"));
        show("count_named_group", b -> in(b).groupBy((k, v) -> v, Grouped.as("by")).count().toStream().to("out"));
        show("reduce", b -> grouped(b).reduce(DescribeNames::left).toStream().to("out"));
        show("reduce_rekeyed", b -> in(b).groupBy((k, v) -> v).reduce(DescribeNames::left).toStream().to("out"));
        show("aggregate", b -> grouped(b).aggregate(() -> "", (k, v, a) -> a).toStream().to("out"));
        show("aggregate_rekeyed", b -> in(b).selectKey((k, v) -> v).groupByKey()
            .aggregate(() -> "", (k, v, a) -> a).toStream().to("out"));
        show("two_aggregations", b -> {
            final KGroupedStream<String, String> grouped = in(b).groupBy((k, v) -> v);
            grouped.count();
            grouped.reduce(DescribeNames::left);
        });
        show("windowed_count", b -> grouped(b).windowedBy(TUMBLING).count().toStream().to("out"));
        show("windowed_count_store", b -> grouped(b).windowedBy(TUMBLING).count(Materialized.as("counts")).toStream().to("out"));
        show("windowed_reduce", b -> grouped(b).windowedBy(TUMBLING).reduce(DescribeNames::left).toStream().to("out"));
        show("windowed_aggregate", b -> grouped(b).windowedBy(TUMBLING).aggregate(() -> "", (k, v, a) -> a)
            .toStream().to("out"));
        show("windowed_rekeyed", b -> in(b).groupBy((k, v) -> v).windowedBy(TUMBLING)
            .emitStrategy(EmitStrategy.onWindowClose()).count().toStream((w, v) -> w.key()).to("out"));
        show("sliding_count", b -> grouped(b).windowedBy(SLIDING).count().toStream().to("out"));
        show("sliding_reduce", b -> grouped(b).windowedBy(SLIDING).reduce(DescribeNames::left).toStream().to("out"));
        show("session_count", b -> grouped(b).windowedBy(SESSIONS).count().toStream().to("out"));
        show("session_reduce", b -> grouped(b).windowedBy(SESSIONS).reduce(DescribeNames::left).toStream().to("out"));
        show("session_aggregate", b -> grouped(b).windowedBy(SESSIONS)
            .aggregate(() -> "", (k, v, a) -> a, (k, x, y) -> x).toStream().to("out"));
        show("cogroup", b -> grouped(b).cogroup((String k, String v, String a) -> a)
            .cogroup(b.<String, String>stream("other").groupByKey(), (k, v, a) -> a).aggregate(() -> "").toStream().to("out"));
        show("cogroup_rekeyed", b -> in(b).groupBy((k, v) -> v).cogroup((String k, String v, String a) -> a)
            .cogroup(b.<String, String>stream("other").groupBy((k, v) -> v, Grouped.as("by")), (k, v, a) -> a)
            .aggregate(() -> "").toStream().to("out"));
        show("cogroup_windowed", b -> grouped(b).cogroup((String k, String v, String a) -> a)
            .cogroup(b.<String, String>stream("other").groupByKey(), (k, v, a) -> a).windowedBy(TUMBLING)
            .aggregate(() -> "").toStream().to("out"));
        show("stream_table_join", b -> in(b).join(b.<String, String>table("table"), DescribeNames::left)
            .leftJoin(b.<String, String>table("other"), DescribeNames::left).to("out"));
        show("stream_table_join_rekeyed", b -> in(b).selectKey((k, v) -> v)
            .join(b.<String, String>table("table"), DescribeNames::left).to("out"));
        show("stream_table_join_named", b -> in(b).selectKey((k, v) -> v)
            .join(b.<String, String>table("table"), DescribeNames::left, Joined.as("rich")).to("out"));
        show("stream_table_join_grace", b -> in(b).join(b.<String, String>table("table",
                Materialized.as(Stores.persistentVersionedKeyValueStore("versions", MS))),
            DescribeNames::left, Joined.with(null, null, null, null, MS)).to("out"));
        show("stream_join", b -> in(b).join(b.<String, String>stream("other"), DescribeNames::left, NEAR).to("out"));
        show("stream_left_join", b -> in(b).leftJoin(b.<String, String>stream("other"), DescribeNames::left, NEAR).to("out"));
        show("stream_outer_join", b -> in(b).outerJoin(b.<String, String>stream("other"), DescribeNames::left, NEAR).to("out"));
        show("stream_join_rekeyed", b -> in(b).selectKey((k, v) -> v).join(
            b.<String, String>stream("other").selectKey((k, v) -> v), DescribeNames::left, NEAR).to("out"));
        show("stream_outer_join_rekeyed", b -> in(b).selectKey((k, v) -> v).outerJoin(
            b.<String, String>stream("other").selectKey((k, v) -> v), DescribeNames::left, NEAR).to("out"));
        show("stream_join_named", b -> in(b).selectKey((k, v) -> v).join(
            b.<String, String>stream("other"), DescribeNames::left, NEAR, StreamJoined.as("pairs")).to("out"));
        show("stream_outer_join_named", b -> in(b).outerJoin(b.<String, String>stream("other"), DescribeNames::left, NEAR,
            StreamJoined.<String, String, String>as("pairs").withName("node")).to("out"));
        show("table_filter_and_map", b -> b.<String, String>table("in").filter((k, v) -> true).mapValues(v -> v)
            .filterNot((k, v) -> true, Materialized.as("rows")).toStream().to("out"));
        show("table_join", b -> b.<String, String>table("in")
            .join(b.<String, String>table("other"), DescribeNames::left).toStream().to("out"));
        show("table_left_join_named", b -> b.<String, String>table("in")
            .leftJoin(b.<String, String>table("other"), DescribeNames::left, Named.as("rich")).toStream().to("out"));
        show("table_outer_join_store", b -> b.<String, String>table("in")
            .outerJoin(b.<String, String>table("other"), DescribeNames::left, Materialized.as("rows")).toStream().to("out"));
        show("table_group", b -> b.<String, String>table("in").groupBy((k, v) -> KeyValue.pair(v, k)).count()
            .toStream().to("out"));
        show("table_group_store", b -> b.<String, String>table("in").groupBy((k, v) -> KeyValue.pair(v, k))
            .count(Materialized.as("counts")).toStream().to("out"));
        show("table_reduce", b -> b.<String, String>table("in").groupBy((k, v) -> KeyValue.pair(v, k))
            .reduce(DescribeNames::left, DescribeNames::left).toStream().to("out"));
        show("table_aggregate", b -> b.<String, String>table("in").groupBy((k, v) -> KeyValue.pair(v, k), Grouped.as("by"))
            .aggregate(() -> "", (k, v, a) -> a, (k, v, a) -> a).toStream().to("out"));
        show("transform_values", b -> b.<String, String>table("in")
            .transformValues(Unchanged::new).toStream().to("out"));
        show("transform_values_store", b -> b.<String, String>table("in")
            .transformValues(Unchanged::new, Materialized.as("rows")).toStream().to("out"));
        show("suppress", b -> grouped(b).windowedBy(TUMBLING).count()
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())).toStream().to("out"));
        show("named_suppress", b -> b.<String, String>table("in")
            .suppress(Suppressed.<String>untilTimeLimit(MS, Suppressed.BufferConfig.maxRecords(5)).withName("held"))
            .toStream().to("out"));
        show("foreign_key_join", b -> b.<String, String>table("in")
            .join(b.<String, String>table("other"), (String v) -> v, DescribeNames::left).toStream().to("out"));
        show("foreign_key_join_store", b -> b.<String, String>table("in")
            .leftJoin(b.<String, String>table("other"), (String v) -> v, DescribeNames::left, Materialized.as("rows"))
            .toStream().to("out"));
        show("foreign_key_join_named", b -> b.<String, String>table("in")
            .join(b.<String, String>table("other"), (String v) -> v, DescribeNames::left, TableJoined.as("rich"))
            .toStream().to("out"));
        show("joined_twice", b -> {
            final KStream<String, String> stream = in(b).selectKey((k, v) -> v);
            final KStream<String, String> other = b.stream("other");
            stream.join(other, DescribeNames::left, NEAR).to("out");
            stream.join(other, DescribeNames::left, NEAR).to("again");
        });
        show("joined_twice_with_tables", b -> {
            final KStream<String, String> stream = in(b).selectKey((k, v) -> v);
            final KTable<String, String> table = b.table("table");
            stream.join(table, DescribeNames::left).to("out");
            stream.join(table, DescribeNames::left).to("again");
        });
        show("joined_with_itself", b -> {
            final KStream<String, String> stream = in(b).selectKey((k, v) -> v);
            stream.join(stream, DescribeNames::left, NEAR).to("out");
        });
        show("joined_and_grouped", b -> {
            final KStream<String, String> stream = in(b).selectKey((k, v) -> v);
            stream.join(b.<String, String>stream("other"), DescribeNames::left, NEAR).to("out");
            stream.groupByKey().count();
        });
        show("then", b -> {
            in(b).split()
                .branch((k, v) -> true, Branched.withConsumer(s -> s.groupByKey().count()))
                .branch((k, v) -> true, Branched.withFunction(s -> s.mapValues(v -> v)))
                .defaultBranch(Branched.withConsumer(s -> s.groupBy((k, v) -> v).count()));
            b.<String, String>stream("other").filter((k, v) -> true).to("out");
        });
        show("same_topic_twice", b -> {
            in(b).filter((k, v) -> true).to("out");
            in(b).mapValues(v -> v).to("again");
        });
        show("named_operators", b -> {
            in(b).filter((k, v) -> true, Named.as("some")).mapValues(v -> v, Named.as("values"))
                .selectKey((k, v) -> v, Named.as("keys")).peek((k, v) -> { }, Named.as("seen")).to("out", Produced.as("sent"));
            in(b).filter((k, v) -> true).to("again");
        });
        show("named_table_operators", b -> {
            b.table("in", Consumed.<String, String>as("read"), Materialized.as("rows"))
                .filter((k, v) -> true, Named.as("some")).mapValues(v -> v, Named.as("values")).toStream(Named.as("rows-as-stream"))
                .to("out");
            b.<String, String>stream("other").to("again");
        });
        show("named_count_rekeyed", b -> {
            in(b).groupBy((k, v) -> v).count(Named.as("mine")).toStream().to("out");
            b.<String, String>stream("other").to("again");
        });
        show("named_ends", b -> {
            final KStream<String, String> stream = in(b);
            stream.merge(b.stream("other"), Named.as("both")).foreach((k, v) -> { }, Named.as("each"));
            stream.toTable(Named.as("rows"));
            stream.flatMap((k, v) -> List.of(new KeyValue<>(k, v)), Named.as("flat")).to("out");
        });
        show("cogroup_one_rekeyed", b -> grouped(b).<String>cogroup(DescribeNames::third)
            .cogroup(b.<String, String>stream("other").groupBy((k, v) -> v), DescribeNames::third)
            .aggregate(() -> "").toStream().to("out"));
        show("cogroup_one_rekeyed_store", b -> grouped(b).<String>cogroup(DescribeNames::third)
            .cogroup(b.<String, String>stream("other").groupBy((k, v) -> v), DescribeNames::third)
            .aggregate(() -> "", Materialized.as("kept")).toStream().to("out"));
        show("cogroup_named", b -> grouped(b).<String>cogroup(DescribeNames::third)
            .cogroup(b.<String, String>stream("other").groupBy((k, v) -> v, Grouped.as("by")), DescribeNames::third)
            .aggregate(() -> "", Named.as("mine"), Materialized.as("kept")).toStream().to("out"));
        show("global_store", b -> {
            b.addGlobalStore(KEPT, "table", Consumed.with(Serdes.String(), Serdes.String()), () -> new Absorbing());
            in(b).to("out");
        });
        show("named_global_store", b -> {
            b.addGlobalStore(KEPT, "table", Consumed.with(Serdes.String(), Serdes.String()).withName("fill"), () -> new Absorbing());
            in(b).to("out");
        });
    }

    private static final class Nothing implements Processor<String, String, String, String> {
        @Override
        public void process(final Record<String, String> record) { }
    }

    private static final class NothingFixed implements FixedKeyProcessor<String, String, String> {
        @Override
        public void process(final FixedKeyRecord<String, String> record) { }
    }

    private static final class Unchanged
            implements org.apache.kafka.streams.kstream.ValueTransformerWithKey<String, String, String> {
        @Override
        public void init(final org.apache.kafka.streams.processor.ProcessorContext context) { }

        @Override
        public String transform(final String key, final String value) {
            return value;
        }

        @Override
        public void close() { }
    }
}
