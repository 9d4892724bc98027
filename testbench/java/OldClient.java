/* A client by Apache Kafka's own library of long ago: compiled against 0.10.2 and 1.0.
 *
 *   OldClient write BOOTSTRAP TOPIC CODEC…   standard input: KEY VALUE MS a line, sent once per codec; says the offsets
 *   OldClient read BOOTSTRAP TOPIC           says OFFSET KEY VALUE MS for each record from the beginning to the end
 *   OldClient group BOOTSTRAP TOPIC GROUP N  says N values, then commits
 *
 * Keys and values are base64, or - for null.
 */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class OldClient {
    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[1]);
        switch (words[0]) {
            case "write" -> write(settings, words[2], Arrays.asList(words).subList(3, words.length));
            case "read" -> read(settings, words[2]);
            case "group" -> group(settings, words[2], words[3], Integer.parseInt(words[4]));
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static void write(Properties settings, String topic, List<String> codecs) throws Exception {
        List<String[]> rows = new ArrayList<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) rows.add(line.split(" "));
        settings.put("acks", "all");
        settings.put("linger.ms", "20");
        for (String codec : codecs) {
            settings.put("compression.type", codec);
            try (KafkaProducer<byte[], byte[]> producer =
                     new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (String[] row : rows) {
                    long stamp = Long.parseLong(row[2]);
                    sent.add(producer.send(new ProducerRecord<>(topic, 0, stamp, bytes(row[0]), bytes(row[1]))));
                }
                for (Future<RecordMetadata> each : sent) System.out.println(each.get().offset());
            }
        }
    }

    private static void read(Properties settings, String topic) {
        settings.put("fetch.max.wait.ms", "50");
        settings.put("enable.auto.commit", "false");
        TopicPartition where = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(Collections.singletonList(where));
            consumer.seekToEnd(Collections.singletonList(where));
            long end = consumer.position(where);
            consumer.seekToBeginning(Collections.singletonList(where));
            while (consumer.position(where) < end) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(500)) {
                    System.out.printf("%d %s %s %d%n", each.offset(), text(each.key()), text(each.value()), each.timestamp());
                }
            }
        }
    }

    private static void group(Properties settings, String topic, String group, int count) {
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "1");
        settings.put("fetch.max.wait.ms", "50");
        try (KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(Collections.singletonList(topic));
            int found = 0;
            while (found < count) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(500)) {
                    System.out.println(text(each.value()));
                    found++;
                }
            }
            consumer.commitSync();
        }
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text);
    }

    private static String text(byte[] content) {
        return content == null ? "-" : Base64.getEncoder().encodeToString(content);
    }
}
