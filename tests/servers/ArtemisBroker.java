import java.util.HashSet;
import java.util.Set;
import org.apache.activemq.artemis.api.core.QueueConfiguration;
import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.api.core.SimpleString;
import org.apache.activemq.artemis.core.config.Configuration;
import org.apache.activemq.artemis.core.config.CoreAddressConfiguration;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.config.impl.SecurityConfiguration;
import org.apache.activemq.artemis.core.security.Role;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;
import org.apache.activemq.artemis.spi.core.security.ActiveMQJAASSecurityManager;
import org.apache.activemq.artemis.spi.core.security.jaas.InVMLoginModule;

/**
 * ActiveMQ Artemis with what `artemis create` would configure, less its web console and its other protocols. Arguments:
 * the data folder, a user and a password (empty: everybody may come), the port, the idle timeout in
 * milliseconds, and the queues to create.
 */
public class ArtemisBroker {
    private static final String AMQP =
            "tcp://127.0.0.1:%s?protocols=AMQP;amqpCredits=1000;amqpLowCredits=300;amqpMinLargeMessageSize=102400;"
                    + "amqpDuplicateDetection=true;amqpIdleTimeout=%s";

    public static void main(String[] arguments) throws Exception {
        String user = arguments[1];
        Configuration configuration = configuration(arguments[0], !user.isEmpty());
        configuration.addAcceptorConfiguration("amqp", String.format(AMQP, arguments[3], arguments[4]));
        addQueue(configuration, "DLQ");
        addQueue(configuration, "ExpiryQueue");
        for (int index = 5; index < arguments.length; index++) {
            addQueue(configuration, arguments[index]);
        }
        EmbeddedActiveMQ broker = new EmbeddedActiveMQ().setConfiguration(configuration);
        if (!user.isEmpty()) {
            SecurityConfiguration users = new SecurityConfiguration();
            users.addUser(user, arguments[2]);
            users.addRole(user, "all");
            broker.setSecurityManager(new ActiveMQJAASSecurityManager(InVMLoginModule.class.getName(), users));
        }
        broker.start();
    }

    private static Configuration configuration(String folder, boolean secure) {
        Configuration configuration = new ConfigurationImpl();
        configuration.setName("tests");
        configuration.setPersistenceEnabled(true);
        configuration.setJournalType(JournalType.NIO);
        configuration.setJournalDirectory(folder + "/journal");
        configuration.setBindingsDirectory(folder + "/bindings");
        configuration.setPagingDirectory(folder + "/paging");
        configuration.setLargeMessagesDirectory(folder + "/large-messages");
        configuration.setJournalFileSize(1 << 20);
        configuration.setJMXManagementEnabled(false);
        configuration.setSecurityEnabled(secure);
        Set<Role> roles = new HashSet<>();
        roles.add(new Role("all", true, true, true, true, true, true, true, true, true, true, false, false));
        configuration.putSecurityRoles("#", roles);
        AddressSettings settings = new AddressSettings();
        settings.setDeadLetterAddress(SimpleString.of("DLQ")).setExpiryAddress(SimpleString.of("ExpiryQueue"));
        settings.setAutoDeleteQueues(false).setAutoDeleteAddresses(false);
        configuration.addAddressSetting("#", settings);
        return configuration;
    }

    private static void addQueue(Configuration configuration, String name) {
        CoreAddressConfiguration address = new CoreAddressConfiguration().setName(name);
        address.addRoutingType(RoutingType.ANYCAST);
        address.addQueueConfig(QueueConfiguration.of(name).setRoutingType(RoutingType.ANYCAST));
        configuration.addAddressConfiguration(address);
    }
}
