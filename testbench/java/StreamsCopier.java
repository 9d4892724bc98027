/* Kafka Streams copies a topic exactly once.
 *
 *   StreamsCopier BOOTSTRAP SOURCE TARGET NAME STATE
 *
 * Records are numbers as text; each goes into the partition that it came from, which is its number modulo the number of
 * partitions. NAME is the application's id, and so its group; STATE a directory. It ends when its standard
 * input does.
 */

import java.io.IOException;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

public final class StreamsCopier {
    public static void main(String[] words) throws IOException {
        Serde<String> text = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(words[1], Consumed.with(text, text))
            .peek((key, value) -> slowly())
            .to(words[2], Produced.with(text, text).withStreamPartitioner(
                (topic, key, value, count) -> Optional.of(Set.of(Integer.parseInt(value) % count))));
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings(words[0], words[3], words[4]))) {
            streams.setUncaughtExceptionHandler(error -> {
                System.err.println("replaced a thread after " + error);
                return StreamThreadExceptionResponse.REPLACE_THREAD;
            });
            streams.start();
            while (System.in.read() >= 0) { }
            streams.close(Duration.ofSeconds(30));
        }
    }

    private static Properties settings(String bootstrap, String name, String state) {
        Properties settings = new Properties();
        settings.putAll(Map.of("bootstrap.servers", bootstrap, "application.id", name, "commit.interval.ms", "50"));
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("state.dir", state);
        settings.putAll(Map.of("auto.offset.reset", "earliest", "session.timeout.ms", "6000"));
        settings.putAll(Map.of("heartbeat.interval.ms", "1000", "producer.transaction.timeout.ms", "6000"));
        return settings;
    }

    /** So that what a commit interval holds is many transactions of a test, and somebody can be killed between them. */
    private static void slowly() {
        try {
            Thread.sleep(0, 500_000);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }
}
