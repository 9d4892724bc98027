/* One member of a consumer group, by Apache Kafka's own consumer.
 *
 *   GroupMember BOOTSTRAP GROUP TOPIC [INSTANCE]
 *
 * Says and does what testbench/member.py says and does. It leaves the group when its standard input ends.
 */

import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public final class GroupMember {
    private static final AtomicBoolean over = new AtomicBoolean();

    public static void main(String[] words) {
        Thread waiter = new Thread(GroupMember::awaitEndOfInput, "stdin");
        waiter.setDaemon(true);
        waiter.start();
        String instance = words.length > 3 ? words[3] : null;
        Properties settings = settings(words[0], words[1], instance);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(words[2]), new Teller(consumer));
            while (!over.get()) process(consumer, consumer.poll(Duration.ofMillis(200)));
        }
        System.out.println("[\"left\"]");
    }

    private static void awaitEndOfInput() {
        try {
            while (System.in.read() >= 0) { }
        } catch (IOException ended) {
            // The other side is gone: the same as its end.
        }
        over.set(true);
    }

    private static Properties settings(String bootstrap, String group, String instance) {
        Properties settings = new Properties();
        settings.putAll(Map.of("bootstrap.servers", bootstrap, "group.id", group, "heartbeat.interval.ms", "1000"));
        settings.putAll(Map.of("auto.offset.reset", "earliest", "enable.auto.commit", "false", "max.poll.records", "50"));
        settings.putAll(Map.of("default.api.timeout.ms", "10000", "reconnect.backoff.max.ms", "500"));
        settings.put("partition.assignment.strategy", RangeAssignor.class.getName());
        settings.put("session.timeout.ms", instance == null ? "6000" : "20000");
        if (instance != null) settings.put("group.instance.id", instance);
        return settings;
    }

    private static void process(KafkaConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
        for (ConsumerRecord<String, String> each : records) {
            System.out.printf("[\"read\", %d, %d, \"%s\"]%n", each.partition(), each.offset(), each.value());
        }
        if (records.isEmpty()) return;
        try {
            consumer.commitSync();
        } catch (KafkaException error) {  // a rebalance, or a coordinator that is gone: the records come again
            System.out.printf("[\"commit failed\", \"%s\"]%n", error.getClass().getSimpleName());
        }
    }

    private record Teller(KafkaConsumer<String, String> consumer) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            System.out.println("[\"owns\", [], -1]");
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            String owned = partitions.stream().map(TopicPartition::partition).sorted().map(String::valueOf)
                .collect(Collectors.joining(", "));
            System.out.printf("[\"owns\", [%s], %d]%n", owned, consumer.groupMetadata().generationId());
        }
    }
}
