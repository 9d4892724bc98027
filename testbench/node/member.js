// One member of a consumer group, by kafkajs: node member.js BOOTSTRAP GROUP TOPIC
//
// Says and does what testbench/member.py says and does. It leaves the group when its standard input ends. kafkajs knows
// no static members, and no assignment by range: that one is written here, as kafkajs asks for; in version 0 of its messages,
// for kafkajs leaves out what later versions must say.
"use strict";

const { Kafka, AssignerProtocol, logLevel } = require("kafkajs");

const { MemberMetadata, MemberAssignment } = AssignerProtocol;
const [bootstrap, group, topic] = process.argv.slice(2);

const tell = (...event) => process.stdout.write(JSON.stringify(event) + "\n");

// The share of one member of what is numbered 0 to count - 1: the first ones get one more when it does not come out even.
const share = (count, members, at) => {
  const each = Math.floor(count / members);
  const more = count % members;
  const first = at * each + Math.min(at, more);
  return Array.from({ length: each + (at < more ? 1 : 0) }, (_, index) => first + index);
};

const range = ({ cluster }) => ({
  name: "range",
  version: 0,
  protocol: ({ topics }) => ({ name: "range", metadata: MemberMetadata.encode({ version: 0, topics, userData: Buffer.alloc(0) }) }),
  async assign({ members, topics }) {
    const sorted = members.map(({ memberId }) => memberId).sort();
    return sorted.map((memberId, at) => {
      const assignment = {};
      for (const each of topics) {
        assignment[each] = share(cluster.findTopicPartitionMetadata(each).length, sorted.length, at);
      }
      return { memberId, memberAssignment: MemberAssignment.encode({ version: 0, assignment, userData: Buffer.alloc(0) }) };
    });
  },
});

// Its events do not say which generation an assignment is of; its log does.
const logCreator = () => ({ level, log }) => {
  if (log.message === "Received assignment") {
    const owned = (log.memberAssignment[topic] || []).slice().sort((one, other) => one - other);
    tell("owns", owned, log.generationId);
  } else if (level <= logLevel.WARN) {
    process.stderr.write(`${log.message} ${log.error || ""}\n`);
  }
};

const kafka = new Kafka({
  brokers: [bootstrap], clientId: "kafkajs", logLevel: logLevel.DEBUG, logCreator,
  connectionTimeout: 2000, requestTimeout: 5000, retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: 60 },
});
const consumer = kafka.consumer({
  groupId: group, partitionAssigners: [range], sessionTimeout: 6000, heartbeatInterval: 1000, maxWaitTimeInMs: 200,
  metadataMaxAge: 5000,
});

async function main() {
  consumer.on(consumer.events.REBALANCING, () => tell("owns", [], -1));
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    tell("commit failed", String(payload.error));
    if (!payload.restart) process.exit(1);
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    eachBatch: async ({ batch }) => {
      for (const each of batch.messages) tell("read", batch.partition, Number(each.offset), each.value.toString());
    },
  });
}

process.stdin.resume();
process.stdin.on("end", async () => {
  await consumer.disconnect();
  tell("left");
  process.exit(0);
});
main();
