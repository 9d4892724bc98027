/* Logs in and does one thing for each line of its standard input, by Apache Kafka's own library.
 *
 * The fields of a line are separated by tabs: see testbench/logins/cases.py. Says "ok", or the class of the error.
 */

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class LoginClient {
    private static final String MODULES = "org.apache.kafka.common.security.";
    private static final long WAIT_MS = 15_000;

    public static void main(String[] words) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(outcome(line.split("\t", -1)));
        }
    }

    private static String outcome(String[] fields) {
        try {
            act(settings(fields), fields[7], fields[8]);
            return "ok";
        } catch (ExecutionException error) {
            return name(error.getCause());
        } catch (KafkaException error) {
            return name(error.getClass() == KafkaException.class && error.getCause() != null ? error.getCause() : error);
        }
    }

    private static String name(Throwable error) {
        return error.getClass().getSimpleName();
    }

    private static void act(Properties settings, String action, String resource) throws ExecutionException {
        switch (action) {
            case "write" -> write(settings, resource);
            case "read" -> read(settings, resource);
            case "transaction" -> transaction(settings, resource);
            case "acls" -> acls(settings);
            default -> throw new IllegalArgumentException(action);
        }
    }

    private static void write(Properties settings, String topic) throws ExecutionException {
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            producer.send(new ProducerRecord<>(topic, new byte[1])).get();
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void read(Properties settings, String group) {
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of("open"));
            long end = System.currentTimeMillis() + WAIT_MS;
            while (consumer.poll(Duration.ofMillis(100)).isEmpty()) {
                if (System.currentTimeMillis() > end) throw new KafkaException("no record");
            }
        }
    }

    private static void transaction(Properties settings, String id) {
        settings.put("transactional.id", id);
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            producer.initTransactions();
        }
    }

    private static void acls(Properties settings) throws ExecutionException {
        try (Admin admin = Admin.create(settings)) {
            admin.describeAcls(AclBindingFilter.ANY).values().get();
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(Properties settings) {
        settings.put("max.block.ms", Long.toString(WAIT_MS));
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static Properties settings(String[] fields) {
        Properties made = new Properties();
        made.put("bootstrap.servers", fields[0]);
        made.put("security.protocol", fields[1]);
        if (!fields[2].isEmpty()) {
            made.put("sasl.mechanism", fields[2]);
            made.put("sasl.jaas.config", login(fields[2], fields[3], fields[4]));
        }
        if (fields[1].endsWith("SSL")) {
            made.put("ssl.truststore.type", "PEM");
            made.put("ssl.truststore.location", fields[5]);
        }
        if (!fields[6].isEmpty()) {
            made.put("ssl.keystore.type", "PEM");
            made.put("ssl.keystore.location", fields[6]);
        }
        return made;
    }

    private static String login(String mechanism, String user, String secret) {
        if (mechanism.equals("OAUTHBEARER")) {
            String module = MODULES + "oauthbearer.OAuthBearerLoginModule";
            return module + " required unsecuredLoginStringClaim_sub=\"" + user + "\";";
        }
        String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        return MODULES + module + " required username=\"" + user + "\" password=\"" + secret + "\";";
    }
}
