/* Apache Kafka's own Java clients under faults: an idempotent producer of numbered values, or a consumer that notes all.
 *
 *   ChaosClient produce BOOTSTRAP TOPIC PARTITIONS ID RATE OUT
 *   ChaosClient consume BOOTSTRAP TOPIC PARTITIONS OUT
 *
 * Same files and same lines on standard output as testbench/chaos/producer.py and consumer.py, which say what they mean.
 * It runs until its standard input ends.
 */

import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class ChaosClient {
    private static final int HEAD = 13;
    private static final CountDownLatch stopped = new CountDownLatch(1);

    public static void main(String[] words) throws Exception {
        Thread waiter = new Thread(ChaosClient::awaitEndOfInput, "stdin");
        waiter.setDaemon(true);
        waiter.start();
        int partitions = Integer.parseInt(words[3]);
        if (words[0].equals("produce")) {
            new Producing(words[2], partitions, Integer.parseInt(words[4]), Double.parseDouble(words[5]))
                .run(words[1], Path.of(words[6]));
        } else {
            consume(words[1], words[2], partitions, Path.of(words[4]));
        }
    }

    private static void awaitEndOfInput() {
        try {
            while (System.in.read() >= 0) { }
        } catch (IOException ended) {
            // The other side is gone: the same as its end.
        }
        stopped.countDown();
    }

    private static boolean running() {
        return stopped.getCount() > 0;
    }

    /** What both clients are told. Time-outs are short so that a request lost in a cut is repeated soon. */
    private static Properties common(String bootstrap) throws IOException {
        Properties settings = new Properties();
        String login = System.getenv("CHAOS_LOGIN");
        if (login != null) {
            try (var lines = Files.newBufferedReader(Path.of(login))) {
                settings.load(lines);
            }
        }
        settings.put("bootstrap.servers", bootstrap);
        settings.put("request.timeout.ms", "5000");
        settings.put("metadata.max.age.ms", "10000");
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("default.api.timeout.ms", "600000");
        return settings;
    }

    private static final class Producing {
        private final String topic;
        private final int partitions;
        private final int id;
        private final double rate;
        private final AtomicInteger acknowledged = new AtomicInteger();
        private final AtomicInteger failed = new AtomicInteger();
        private byte[] fate = new byte[1 << 16];
        private int sent;

        Producing(String topic, int partitions, int id, double rate) {
            this.topic = topic;
            this.partitions = partitions;
            this.id = id;
            this.rate = rate;
        }

        void run(String bootstrap, Path out) throws Exception {
            Properties settings = common(bootstrap);
            settings.putAll(Map.of("acks", "all", "enable.idempotence", "true", "linger.ms", "5"));
            settings.putAll(Map.of("delivery.timeout.ms", "600000", "max.block.ms", "600000", "buffer.memory", "2097152"));
            try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                long began = System.nanoTime();
                long said = began;
                while (running()) {
                    long due = (long) ((System.nanoTime() - began) * 1e-9 * rate);
                    for (int burst = 0; sent < due && burst < 100; burst++) send(producer);
                    if (System.nanoTime() - said > 1_000_000_000L) {
                        say();
                        said = System.nanoTime();
                    }
                    if (sent >= due) Thread.sleep(2);
                }
                producer.flush();
            }
            say();
            synchronized (this) {
                Files.write(out, Arrays.copyOf(fate, sent));
            }
        }

        private void send(KafkaProducer<byte[], byte[]> producer) {
            int number = sent++;
            grow(number);
            var record = new ProducerRecord<byte[], byte[]>(topic, number % partitions, null, value(id, number));
            producer.send(record, (metadata, error) -> report(number, error));
        }

        private synchronized void grow(int number) {
            if (number >= fate.length) fate = Arrays.copyOf(fate, fate.length * 2);
        }

        private synchronized void report(int number, Exception error) {
            fate[number] = (byte) (error == null ? 1 : 2);
            (error == null ? acknowledged : failed).incrementAndGet();
            if (error != null && failed.get() <= 5) System.err.println("record " + number + ": " + error);
        }

        private void say() {
            System.out.println(sent + " " + acknowledged.get() + " " + failed.get());
        }
    }

    static byte[] value(int id, long number) {
        byte[] bytes = new byte[HEAD + (int) (number % 200)];
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        buffer.put((byte) id).putLong(number).putInt(0);
        Arrays.fill(bytes, HEAD, bytes.length, (byte) number);
        buffer.putInt(9, checksum(bytes));
        return bytes;
    }

    /** Of everything but the checksum's own place. */
    private static int checksum(byte[] value) {
        CRC32 crc = new CRC32();
        crc.update(value, 0, 9);
        crc.update(value, HEAD, value.length - HEAD);
        return (int) crc.getValue();
    }

    private static void consume(String bootstrap, String topic, int partitions, Path out) throws Exception {
        Properties settings = common(bootstrap);
        settings.putAll(Map.of("auto.offset.reset", "none", "enable.auto.commit", "false", "fetch.max.wait.ms", "200"));
        List<TopicPartition> all = new ArrayList<>();
        for (int index = 0; index < partitions; index++) all.add(new TopicPartition(topic, index));
        long count = 0;
        long said = System.nanoTime();
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
             OutputStream file = new BufferedOutputStream(Files.newOutputStream(out), 1 << 16);
             DataOutputStream notes = new DataOutputStream(file)) {
            consumer.assign(all);
            for (TopicPartition each : all) consumer.seek(each, 0);
            Map<TopicPartition, Long> ends = null;
            while (ends == null || !reached(consumer, ends)) {
                if (ends == null && !running()) ends = consumer.endOffsets(all);
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    note(notes, record);
                    count++;
                }
                if (System.nanoTime() - said > 1_000_000_000L) {
                    System.out.println(count);
                    said = System.nanoTime();
                }
            }
        }
        System.out.println(count);
    }

    private static boolean reached(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, Long> ends) {
        return ends.entrySet().stream().allMatch(end -> consumer.position(end.getKey()) >= end.getValue());
    }

    private static void note(DataOutputStream notes, ConsumerRecord<byte[], byte[]> record) throws IOException {
        byte[] value = record.value();
        ByteBuffer buffer = ByteBuffer.wrap(value);
        if (buffer.getInt(9) != checksum(value)) throw new IOException("wrong bytes at " + record.partition() + ":" + record.offset());
        notes.writeInt(record.partition());
        notes.writeLong(record.offset());
        notes.writeInt(value[0]);
        notes.writeLong(buffer.getLong(1));
    }
}
