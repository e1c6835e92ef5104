import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Runs a file of Flink SQL as the SQL client does, in this process, and prints what the last statement gives: a line of
 * JSON for each change, its kind first. Binary columns are in hexadecimal digits.
 *
 * <p>Arguments: the file.
 */
public final class Sql {
    private static final Pattern SETTING = Pattern.compile("SET\\s+'([^']+)'\\s*=\\s*'([^']*)'");

    public static void main(String[] arguments) throws Exception {
        TableEnvironment env = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
        TableResult result = null;
        for (String statement : Files.readString(Path.of(arguments[0])).split(";\\s*(\\n|$)")) {
            Matcher setting = SETTING.matcher(statement.strip());
            if (setting.matches()) { // the client's own statement, which an environment does not know
                env.getConfig().set(setting.group(1), setting.group(2));
            } else if (!statement.isBlank()) {
                result = env.executeSql(statement);
            }
        }
        ObjectMapper json = new ObjectMapper();
        try (CloseableIterator<Row> rows = result.collect()) {
            while (rows.hasNext()) {
                Row row = rows.next();
                List<Object> line = new ArrayList<>();
                line.add(row.getKind().shortString());
                for (int column = 0; column < row.getArity(); column++) {
                    Object field = row.getField(column);
                    line.add(field instanceof byte[] raw ? HexFormat.of().formatHex(raw) : field);
                }
                System.out.println(json.writeValueAsString(line));
            }
        }
    }
}
