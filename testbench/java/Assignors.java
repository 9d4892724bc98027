import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/**
 * Kafka's assignors on cases from standard input, lines of words:
 * topic NAME RACKS..., one word per partition, racks joined by commas, - for none;
 * member ID INSTANCE HEX, the subscription's bytes, - for no instance;
 * run ASSIGNOR: answers a line of HEX, the assignment's bytes, per member in the order given, and forgets the case.
 * A sticky assignor may stumble over a member that cannot change and owned a partition before: the lines are "failed".
 */
public final class Assignors {
    private static final Map<String, Node> NODES = new HashMap<>();

    private Assignors() {
    }

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var partitions = new ArrayList<PartitionInfo>();
        var members = new LinkedHashMap<String, Subscription>();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "topic" -> {
                    for (int number = 2; number < words.length; number++) {
                        Node[] replicas = replicas(words[number]);
                        partitions.add(new PartitionInfo(words[1], number - 2, Node.noNode(), replicas, replicas));
                    }
                }
                case "member" -> members.put(words[1], subscription(words[3], words[2]));
                default -> {
                    run(assignor(words[1]), partitions, members);
                    partitions.clear();
                    members.clear();
                }
            }
        }
    }

    private static Node[] replicas(String racks) {
        if (racks.equals("-")) {
            return new Node[] {Node.noNode()};
        }
        return Arrays.stream(racks.split(","))
            .map(rack -> NODES.computeIfAbsent(rack, name -> new Node(NODES.size(), "host", 1, name)))
            .toArray(Node[]::new);
    }

    private static Subscription subscription(String hex, String instance) {
        var found = ConsumerProtocol.deserializeSubscription(ByteBuffer.wrap(HexFormat.of().parseHex(hex)));
        found.setGroupInstanceId(instance.equals("-") ? Optional.empty() : Optional.of(instance));
        return found;
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
    }

    private static void run(
        ConsumerPartitionAssignor assignor, List<PartitionInfo> partitions, Map<String, Subscription> members
    ) {
        // As the coordinator's members come to a leader: into a hash map, in the order of the answer.
        var subscriptions = new HashMap<String, Subscription>();
        members.forEach(subscriptions::put);
        var cluster = new Cluster("cluster", NODES.values(), partitions, Collections.emptySet(), Collections.emptySet());
        Map<String, Assignment> found;
        try {
            found = assignor.assign(cluster, new GroupSubscription(subscriptions)).groupAssignment();
        } catch (NullPointerException stumbled) {
            members.keySet().forEach(member -> System.out.println("failed"));
            return;
        }
        for (String member : members.keySet()) {
            ByteBuffer data = ConsumerProtocol.serializeAssignment(found.get(member));
            var bytes = new byte[data.remaining()];
            data.get(bytes);
            System.out.println(HexFormat.of().formatHex(bytes));
        }
    }
}
