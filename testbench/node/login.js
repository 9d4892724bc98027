// Logs in and does one thing for each line of its standard input, by kafkajs.
//
// The fields of a line are separated by tabs: see testbench/logins/cases.py. Says "ok", or the error's type or class.
"use strict";

const fs = require("fs");
const readline = require("readline");
const { Kafka, AclOperationTypes, AclPermissionTypes, AclResourceTypes, ResourcePatternTypes, logLevel } = require("kafkajs");

const WAIT_MS = 15_000;
const ANY_ACL = {
  resourceType: AclResourceTypes.ANY, resourcePatternType: ResourcePatternTypes.ANY,
  operation: AclOperationTypes.ANY, permissionType: AclPermissionTypes.ANY,
};

const login = (mechanism, username, password) => {
  if (mechanism === "OAUTHBEARER") return { mechanism, oauthBearerProvider: async () => ({ value: password }) };
  return { mechanism, username, password };
};

const connect = ([bootstrap, protocol, mechanism, user, secret, authority, own]) => new Kafka({
  brokers: [bootstrap], clientId: "kafkajs", logLevel: logLevel.NOTHING, retry: { retries: 0 },
  connectionTimeout: WAIT_MS, requestTimeout: WAIT_MS,
  ...(mechanism && { sasl: login(mechanism, user, secret) }),
  ...(protocol.endsWith("SSL") && {
    ssl: { ca: [fs.readFileSync(authority)], ...(own && { key: fs.readFileSync(own), cert: fs.readFileSync(own) }) },
  }),
});

async function write(kafka, topic) {
  const producer = kafka.producer();
  try {
    await producer.connect();
    await producer.send({ topic, messages: [{ value: "x" }] });
  } finally {
    await producer.disconnect();
  }
}

async function read(kafka, groupId) {
  const consumer = kafka.consumer({ groupId, retry: { retries: 0 } });
  try {
    await consumer.connect();
    await consumer.subscribe({ topics: ["open"], fromBeginning: true });
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
      consumer.run({ eachMessage: async () => resolve() }).catch(reject);
      setTimeout(() => reject(new Error("no record")), WAIT_MS).unref();
    });
  } finally {
    await consumer.disconnect();
  }
}

async function transaction(kafka, transactionalId) {
  const producer = kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1 });
  try {
    await producer.connect();
    await (await producer.transaction()).abort();
  } finally {
    await producer.disconnect();
  }
}

async function acls(kafka) {
  const admin = kafka.admin();
  try {
    await admin.connect();
    await admin.describeAcls(ANY_ACL);
  } finally {
    await admin.disconnect();
  }
}

const ACTIONS = { write, read, transaction, acls };

async function outcome(fields) {
  try {
    await ACTIONS[fields[7]](connect(fields), fields[8]);
    return "ok";
  } catch (error) {
    const cause = error.cause || error;
    return cause.type || cause.name;
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write((await outcome(line.split("\t"))) + "\n");
  }
  process.exit(0);
}

main();
