import jakarta.jms.Connection;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.activemq.ActiveMQConnectionFactory;

/**
 * A JMS application as others write it: reads `group TAB body` lines and sends each as a TextMessage that carries
 * nothing but its JMSXGroupID. Arguments: the OpenWire URL and the queue.
 */
public class JmsProducer {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Connection connection = new ActiveMQConnectionFactory(arguments[0]).createConnection();
                Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
                MessageProducer producer = session.createProducer(session.createQueue(arguments[1]))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] groupAndBody = line.split("\t", 2);
                TextMessage message = session.createTextMessage(groupAndBody[1]);
                if (!groupAndBody[0].isEmpty()) {
                    message.setStringProperty("JMSXGroupID", groupAndBody[0]);
                }
                producer.send(message);
            }
            session.commit();
        }
    }
}
