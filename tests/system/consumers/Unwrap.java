import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.connect.transforms.Transformation;

/**
 * What a worker of Kafka Connect does in front of a sink, by the sink's own configuration: consumer, converters, header
 * converter, transforms. Each record that is left becomes a line of JSON. Ends at what was the topic's end when it began.
 *
 * <p>Arguments: a file of the sink's properties, the bootstrap servers.
 */
public final class Unwrap {
    private static final Map<String, String> PLAIN = Map.of("schemas.enable", "false");

    public static void main(String[] arguments) throws Exception {
        Map<String, String> config = read(arguments[0]);
        Converter keys = converter(config, "key.converter", true);
        Converter values = converter(config, "value.converter", false);
        HeaderConverter headers = headerConverter(config);
        List<Transformation<SinkRecord>> transforms = transforms(config);
        JsonConverter out = new JsonConverter();
        out.configure(PLAIN, false);
        Map<String, Object> settings = new HashMap<>(below(config, "consumer.override."));
        settings.put("bootstrap.servers", arguments[1]);
        settings.put("enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> all = new ArrayList<>();
            consumer.partitionsFor(config.get("topics")).forEach(p -> all.add(new TopicPartition(p.topic(), p.partition())));
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            consumer.assign(all);
            consumer.seekToBeginning(all);
            while (all.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
                for (ConsumerRecord<byte[], byte[]> raw : consumer.poll(Duration.ofMillis(200))) {
                    SinkRecord record = converted(raw, keys, values, headers);
                    for (Transformation<SinkRecord> transform : transforms) {
                        record = record == null ? null : transform.apply(record);
                    }
                    if (record != null) {
                        System.out.println(line(record, out));
                    }
                }
            }
        }
    }

    private static SinkRecord converted(
            ConsumerRecord<byte[], byte[]> raw, Converter keys, Converter values, HeaderConverter headers) {
        ConnectHeaders found = new ConnectHeaders();
        for (Header header : raw.headers()) {
            found.add(header.key(), headers.toConnectHeader(raw.topic(), header.key(), header.value()));
        }
        SchemaAndValue key = keys.toConnectData(raw.topic(), raw.headers(), raw.key());
        SchemaAndValue value = values.toConnectData(raw.topic(), raw.headers(), raw.value());
        return new SinkRecord(
                raw.topic(), raw.partition(), key.schema(), key.value(), value.schema(), value.value(),
                raw.offset(), raw.timestamp(), TimestampType.CREATE_TIME, found);
    }

    private static String line(SinkRecord record, JsonConverter out) {
        String schema = record.valueSchema() == null ? "" : String.valueOf(record.valueSchema().name());
        return "{\"key\":" + json(out.fromConnectData("", record.keySchema(), record.key()))
                + ",\"value\":" + json(out.fromConnectData("", record.valueSchema(), record.value()))
                + ",\"schema\":\"" + schema + "\"}";
    }

    private static String json(byte[] raw) {
        return raw == null ? "null" : new String(raw, StandardCharsets.UTF_8);
    }

    private static Map<String, String> read(String file) throws Exception {
        Properties found = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(file))) {
            found.load(reader);
        }
        Map<String, String> config = new TreeMap<>();
        found.forEach((name, value) -> config.put((String) name, (String) value));
        return config;
    }

    private static Map<String, String> below(Map<String, String> config, String prefix) {
        Map<String, String> found = new HashMap<>();
        config.forEach((name, value) -> {
            if (name.startsWith(prefix)) {
                found.put(name.substring(prefix.length()), value);
            }
        });
        return found;
    }

    private static Converter converter(Map<String, String> config, String name, boolean isKey) throws Exception {
        Converter made = (Converter) instance(config.get(name));
        made.configure(below(config, name + "."), isKey);
        return made;
    }

    private static HeaderConverter headerConverter(Map<String, String> config) throws Exception {
        String name = config.getOrDefault("header.converter", "org.apache.kafka.connect.storage.SimpleHeaderConverter");
        HeaderConverter made = (HeaderConverter) instance(name);
        Map<String, String> settings = below(config, "header.converter.");
        settings.put("converter.type", "header");
        made.configure(settings);
        return made;
    }

    @SuppressWarnings("unchecked")
    private static List<Transformation<SinkRecord>> transforms(Map<String, String> config) throws Exception {
        List<Transformation<SinkRecord>> found = new ArrayList<>();
        for (String name : config.getOrDefault("transforms", "").split(",")) {
            if (!name.isBlank()) {
                var made = (Transformation<SinkRecord>) instance(config.get("transforms." + name + ".type"));
                made.configure(below(config, "transforms." + name + "."));
                found.add(made);
            }
        }
        return found;
    }

    private static Object instance(String className) throws Exception {
        return Class.forName(className).getDeclaredConstructor().newInstance();
    }
}
