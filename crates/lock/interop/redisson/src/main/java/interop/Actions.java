package interop;

import java.lang.reflect.InvocationTargetException;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * The commands of an actor, each as a call of Redisson. They are listed in {@code crates/lock/interop/README.md};
 * words[0] is the actor, words[1] the command, words[2] the kind of lock and words[3] its name.
 */
final class Actions {
    private final RedissonClient client;

    Actions(RedissonClient client) {
        this.client = client;
    }

    String carryOut(String[] words) throws Exception {
        String command = words[1];
        if (command.equals("count")) {
            return count(words);
        }
        RLock lock = lock(words[2], words[3]);
        if (lock == null) {
            return "unsupported";
        }
        switch (command) {
            case "lock":
                if (words.length > 4) {
                    lock.lock(Long.parseLong(words[4]), TimeUnit.MILLISECONDS);
                } else {
                    lock.lock();
                }
                return "ok";
            case "try":
                return yesOrNo(lock.tryLock(Long.parseLong(words[4]), TimeUnit.MILLISECONDS));
            case "unlock":
                lock.unlock();
                return "ok";
            case "depth":
                return "ok " + lock.getHoldCount();
            case "locked":
                return "ok " + lock.isLocked();
            case "remaining":
                return "ok " + lock.remainTimeToLive();
            case "force":
                return "ok " + lock.forceUnlock();
            case "fence":
                // By reflection, as the oldest version has no fenced lock to compile against.
                return "ok " + lock.getClass().getMethod("getToken").invoke(lock);
            default:
                return "unsupported";
        }
    }

    /** Reads, adds one and writes back: loses updates if the lock does not exclude. */
    private String count(String[] words) throws Exception {
        String[] lock = {words[0], "lock", words[2], words[3]};
        String[] unlock = {words[0], "unlock", words[2], words[3]};
        RBucket<String> bucket = client.getBucket(words[4], StringCodec.INSTANCE);
        for (int i = Integer.parseInt(words[5]); i > 0; i--) {
            if (carryOut(lock).equals("unsupported")) {
                return "unsupported";
            }
            try {
                String value = bucket.get();
                bucket.set(String.valueOf((value == null ? 0 : Long.parseLong(value)) + 1));
            } finally {
                carryOut(unlock);
            }
        }
        return "ok";
    }

    private RLock lock(String kind, String name) throws ReflectiveOperationException {
        switch (kind) {
            case "reentrant":
                return client.getLock(name);
            case "fair":
                return client.getFairLock(name);
            case "read":
                return client.getReadWriteLock(name).readLock();
            case "write":
                return client.getReadWriteLock(name).writeLock();
            case "multi":
                return client.getMultiLock(client.getLock(name + ":a"), client.getLock(name + ":b"));
            case "fenced":
                try {
                    return (RLock) RedissonClient.class
                            .getMethod("getFencedLock", String.class)
                            .invoke(client, name);
                } catch (NoSuchMethodException old) {
                    return null;
                } catch (InvocationTargetException failure) {
                    throw new IllegalStateException(failure.getCause());
                }
            default:
                return null;
        }
    }

    private static String yesOrNo(boolean yes) {
        return yes ? "ok" : "no";
    }
}
