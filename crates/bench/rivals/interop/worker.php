<?php
// symfony/lock behind the protocol that worker.py describes: worker.php HOST:PORT,HOST:PORT,…

use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\CombinedStore;
use Symfony\Component\Lock\Store\RedisStore;
use Symfony\Component\Lock\Strategy\ConsensusStrategy;

require '/usr/share/php/Symfony/Component/Lock/autoload.php';

const PATIENCE_S = 1;

$stores = array_map(function (string $node) {
    [$host, $port] = explode(':', $node);
    $redis = new Redis();
    $redis->connect($host, (int) $port);
    return new RedisStore($redis);
}, explode(',', $argv[1]));
$factory = new LockFactory(new CombinedStore($stores, new ConsensusStrategy()));
$held = [];

function acquire(string $key, int $ttl_ms): string
{
    global $factory, $held;
    $lock = $factory->createLock($key, $ttl_ms / 1000, false);
    // Retries with the delays of `acquire(true)`, which itself would wait without a limit.
    for ($end = microtime(true) + PATIENCE_S; microtime(true) < $end; usleep(random_int(90000, 110000))) {
        if ($lock->acquire(false)) {
            $held[$key] = $lock;
            return 'held';
        }
    }
    return 'refused';
}

function release(string $key): string
{
    global $held;
    $lock = $held[$key];
    unset($held[$key]);
    $lock->release();
    return 'released';
}

echo 'ready ', exec("dpkg-query -W -f '\${Version}' php-symfony-lock"), "\n";
while ($line = fgets(STDIN)) {
    [$verb, $key, $ttl_ms] = [...explode(' ', trim($line)), 0];
    try {
        echo $verb === 'release' ? release($key) : acquire($key, (int) $ttl_ms), "\n";
    } catch (Throwable $error) {
        echo 'failed ', get_class($error), ': ', strtr($error->getMessage(), "\n", ' '), "\n";
    }
}
