/* Two programs with transactions, as books about Kafka 1.0 show them: compiled against 1.0. Their mistakes are kept.
 *
 *   OldTransactions produce BOOTSTRAP    writes three records to tp_tx_01 in a transaction, and ends without a commit
 *   OldTransactions transform BOOTSTRAP  says each record of tp_tx_01, and in one transaction copies them to tp_tx_out_01
 *                                        and commits their offsets: not the next ones, and to a group that is not its
 *                                        consumer's
 */

import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class OldTransactions {
    public static void main(String[] words) {
        switch (words[0]) {
            case "produce" -> produce(words[1]);
            case "transform" -> transform(words[1]);
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static void produce(String bootstrap) {
        KafkaProducer<String, String> producer = producer(bootstrap);
        producer.initTransactions();
        producer.beginTransaction();
        try {
            producer.send(new ProducerRecord<>("tp_tx_01", "k1", "v1"));
            producer.send(new ProducerRecord<>("tp_tx_01", "k2", "v2"));
            producer.send(new ProducerRecord<>("tp_tx_01", "k3", "v3"));
        } catch (RuntimeException error) {
            producer.abortTransaction();
            throw error;
        } finally {
            producer.close();
        }
    }

    private static void transform(String bootstrap) {
        String group = "consumer_grp_id_1";
        KafkaProducer<String, String> producer = producer(bootstrap);
        KafkaConsumer<String, String> consumer = consumer(bootstrap, group);
        producer.initTransactions();
        consumer.subscribe(Collections.singleton("tp_tx_01"));
        ConsumerRecords<String, String> records = consumer.poll(1000);
        // The books poll once: on a slow machine that may give no records.
        while (records.isEmpty()) records = consumer.poll(1000);
        producer.beginTransaction();
        try {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (ConsumerRecord<String, String> record : records) {
                System.out.printf("%d %s %s%n", record.offset(), record.key(), record.value());
                producer.send(new ProducerRecord<>("tp_tx_out_01", record.key(), record.value()));
                TopicPartition where = new TopicPartition(record.topic(), record.partition());
                offsets.put(where, new OffsetAndMetadata(record.offset()));
            }
            producer.sendOffsetsToTransaction(offsets, group);
            producer.commitTransaction();
        } catch (RuntimeException error) {
            producer.abortTransaction();
            throw error;
        } finally {
            producer.close();
            consumer.close();
        }
    }

    private static KafkaProducer<String, String> producer(String bootstrap) {
        Map<String, Object> config = new HashMap<>();
        config.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        config.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
        config.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
        config.put(ProducerConfig.CLIENT_ID_CONFIG, "tx_producer");
        config.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, "my_tx_id");
        config.put(ProducerConfig.ACKS_CONFIG, "all");
        return new KafkaProducer<>(config);
    }

    private static KafkaConsumer<String, String> consumer(String bootstrap, String group) {
        Map<String, Object> config = new HashMap<>();
        config.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        config.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class);
        config.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class);
        config.put(ConsumerConfig.GROUP_ID_CONFIG, group);
        config.put(ConsumerConfig.GROUP_ID_CONFIG, "consumer_grp_02");
        config.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
        config.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        return new KafkaConsumer<>(config);
    }
}
