import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.Statement;

/**
 * ElasticMQ, which first says how many queues it is going to restore: it serves before it has them, and says nothing
 * when it has them all. Argument: the JDBC URL of its messages.
 */
public class ElasticMq {
    public static void main(String[] arguments) throws Exception {
        System.out.println("Restores " + storedQueues(arguments[0]) + " queues");
        org.elasticmq.server.Main.main(new String[0]);
    }

    private static int storedQueues(String url) throws Exception {
        try (Connection connection = DriverManager.getConnection(url, "", "");
                Statement statement = connection.createStatement()) {
            String tables = "select count(*) from information_schema.tables where table_name = 'QUEUE'";
            return number(statement, tables) == 0 ? 0 : number(statement, "select count(*) from queue");
        }
    }

    private static int number(Statement statement, String query) throws Exception {
        try (ResultSet result = statement.executeQuery(query)) {
            result.next();
            return result.getInt(1);
        }
    }
}
