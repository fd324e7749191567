import java.util.List;
import org.apache.activemq.broker.BrokerPlugin;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.security.AuthenticationUser;
import org.apache.activemq.security.SimpleAuthenticationPlugin;

/**
 * ActiveMQ Classic without Spring. Arguments: the data folder, a user and a password (empty: everybody may come), and
 * the URI of each connector. The journal is KahaDB and is synced before a send is confirmed: both are the defaults.
 */
public class ActiveMqBroker {
    public static void main(String[] arguments) throws Exception {
        BrokerService broker = new BrokerService();
        broker.setBrokerName("tests");
        broker.setDataDirectory(arguments[0]);
        broker.setUseJmx(false);
        broker.setSchedulerSupport(true);
        if (!arguments[1].isEmpty()) {
            AuthenticationUser user = new AuthenticationUser(arguments[1], arguments[2], "users");
            broker.setPlugins(new BrokerPlugin[] {new SimpleAuthenticationPlugin(List.of(user))});
        }
        for (int index = 3; index < arguments.length; index++) {
            broker.addConnector(arguments[index]);
        }
        broker.start();
        broker.waitUntilStopped();
    }
}
