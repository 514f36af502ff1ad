import io.confluent.parallelconsumer.*;
import java.lang.management.ManagementFactory;
import java.util.*;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/** The peer of the calls: Confluent's Parallel Consumer, key order, one thread per call as its users' guide has it.
 *
 * usage: ParallelConsumerPeer INPUT OUTPUT RECORDS MAX_IN_FLIGHT CALL_MS BOOTSTRAP
 * Every value is written in upper case after a call that sleeps. Prints one JSON line: when the partition was assigned (ms since
 * the epoch), and the processor time of this process from then to the last acknowledged result. */
public class ParallelConsumerPeer {
  public static void main(String[] a) throws Exception {
    String in = a[0], out = a[1], servers = a[5];
    int records = Integer.parseInt(a[2]), maxInFlight = Integer.parseInt(a[3]), callMs = Integer.parseInt(a[4]);
    Properties reading = new Properties();
    reading.put("bootstrap.servers", servers);
    reading.put("group.id", "peer-" + out);
    reading.put("auto.offset.reset", "earliest");
    reading.put("enable.auto.commit", "false");
    Properties writing = new Properties();
    writing.put("bootstrap.servers", servers);
    var options = ParallelConsumerOptions.<byte[], byte[]>builder()
        .ordering(ParallelConsumerOptions.ProcessingOrder.KEY)
        .maxConcurrency(maxInFlight)
        .consumer(new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer()))
        .producer(new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer()))
        .build();
    var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    long[] began = new long[2];
    CountDownLatch open = new CountDownLatch(records);
    var processor = ParallelStreamProcessor.createEosStreamProcessor(options);
    processor.subscribe(List.of(in), new ConsumerRebalanceListener() {
      public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        began[0] = System.currentTimeMillis();
        began[1] = system.getProcessCpuTime();
      }

      public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}
    });
    processor.pollAndProduce(context -> {
      sleep(callMs);
      return new ProducerRecord<>(out, context.key(), new String(context.value()).toUpperCase().getBytes());
    }, result -> open.countDown());
    boolean done = open.await(600, TimeUnit.SECONDS);
    double used = (system.getProcessCpuTime() - began[1]) / 1e9;
    System.out.printf("{\"peer\":\"parallel-consumer\",\"done\":%b,\"begin_ms\":%d,\"processor_s\":%.3f}%n", done, began[0], used);
    processor.closeDontDrainFirst();
    System.exit(0);
  }

  private static void sleep(int ms) {
    try {
      Thread.sleep(ms);
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }
}
